"""The page of `plan3d serve` in a real browser: controls, keyboard, widths, colours, axe.

    pip install "plan3d[web,notebooks]" playwright pillow
    npm pack axe-core && tar xzf axe-core-*.tgz package/axe.min.js
    python tests/benchmarks/web_page.py --axe package/axe.min.js [--pictures docs/figures]

Needs a Chromium (--browser, /usr/bin/chromium) and about three minutes; it starts the server. It
ends with a line for every check, exit code 1 where one fails, and writes the pictures of the docs.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, Response, sync_playwright

SWITCHES = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")
GPT = "model=gpt3-175b&cluster=a100-80gb-sxm&gpus=1024&batch=1536"
SMALL = "model=llama-7b&cluster=h100-sxm&gpus=16&batch=64"
DEFICIENCIES = ("deuteranopia", "protanopia", "tritanopia", "achromatopsia")
LEAST_DIFFERENCE = 12.0
"""CIE 1976 difference that neighbours of a legend keep for any colour blindness; 2.3 is just seen.
"""
LARGEST = 200_000
"""Bytes of a picture."""
CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex='0']"


@contextmanager
def server() -> Iterator[str]:
    """The address of a server of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = (sys.executable, "-m", "plan3d", "serve", "--port", str(port), "--workers", "2")
    process = subprocess.Popen([*words, "--quiet"])
    address = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(100):
            time.sleep(0.3)
            try:
                urllib.request.urlopen(f"{address}api/presets").close()
                break
            except OSError:
                continue
        yield address
    finally:
        process.terminate()
        process.wait()


class Checks:
    """What was checked, and what failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def __call__(self, name: str, holds: object, what: object = "") -> None:
        print(f"{'ok  ' if holds else 'FAIL'} {name}{'' if holds else f': {what}'}", flush=True)
        if not holds:
            self.failed.append(name)


class Opened:
    """The page at one width and scheme, and what its console and the server said."""

    def __init__(self, browser: Browser, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
            permissions=["clipboard-read", "clipboard-write"],
        )
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.refused: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("response", self._heard)

    def _heard(self, response: Response) -> None:
        if response.status >= 400:
            self.refused.append(f"{response.status} {response.url}")

    def go(self, address: str) -> Page:
        self.page.goto("about:blank")
        self.page.goto(address)
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until the question is answered and its plan is drawn."""
        self.page.wait_for_timeout(450)
        self.page.wait_for_selector("#explorer[aria-busy=false]", timeout=60_000)
        self.page.wait_for_timeout(250)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def state(self) -> list[str]:
        if self.page.is_visible(".error"):
            return [self.text(".error")]
        return [self.text(".best"), *self.page.locator(".plans tbody tr").all_inner_texts()]


def looks(check: Checks, browser: Browser, address: str, axe: str) -> None:
    """Every width and scheme: shown whole, no word on the console, nothing that axe minds."""
    for width, scheme in itertools.product(WIDTHS, SCHEMES):
        opened = Opened(browser, width, scheme)
        page = opened.go(f"{address}#{SMALL}")
        page.click(".plans tbody tr:nth-child(2) [data-compare]")
        opened.settle()
        where = f"{width} px, {scheme}"
        wide = page.evaluate("document.documentElement.scrollWidth")
        check(f"nothing is wider than the window ({where})", wide <= width, wide)
        broken = page.evaluate(BROKEN_WORDS)
        check(f"no word is broken ({where})", not broken, broken)
        check(f"the console is silent ({where})", not opened.said, opened.said)
        axe_finds_nothing(check, page, axe, f"the page, {where}")
        opened.context.close()


def axe_finds_nothing(check: Checks, page: Page, axe: str, where: str) -> None:
    # Of the main world, so that the page's own policy is what runs.
    page.context.new_cdp_session(page).send("Page.setBypassCSP", {"enabled": True})
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    serious = [one["id"] for one in found if one["impact"] in ("serious", "critical")]
    told = [(one["id"], one["impact"], one["nodes"][0]["html"][:120]) for one in found]
    check(f"axe has no serious finding ({where}; {len(found)} others)", not serious, told)


def controls(check: Checks, browser: Browser, address: str, folder: Path) -> None:
    """Each control does what it says, under the mouse."""
    opened = Opened(browser)
    page = opened.go(f"{address}#{SMALL}")

    def changes(name: str, act: Callable[[], object], of: Callable[[], object]) -> None:
        before = of()
        act()
        opened.settle()
        check(
            f"{name} changes the answer", of() != before and not page.is_visible(".error"), before
        )

    def address_of() -> str:
        return page.url

    for field, value in (("cluster", "a100-80gb-sxm"), ("precision", "fp16"),
                         ("framework", "megatron")):  # fmt: skip
        changes(field, lambda f=field, v=value: page.select_option(f"#{f}", v), address_of)
    for field, value in (("gpus", "32"), ("batch", "128"), ("sequence", "1024"),
                         ("model", "llama-3.1-8b")):  # fmt: skip
        changes(field, lambda f=field, v=value: page.fill(f"#{f}", v), opened.state)
    page.click("#fields summary")
    changes("fix", lambda: page.fill("#fix", "zero=1"), opened.state)
    changes("choose", lambda: page.fill("#choose", "tp=1,2 pp=2"), opened.state)
    check("choose is kept to", all("pp=2" in row for row in opened.state()[1:]), opened.state())
    page.fill("#gpus", "7")
    page.click("#ask")
    opened.settle()
    none = opened.text(".best")
    check("an answer of no plans is a sentence", none.startswith("No ") and none[-1] == ".", none)
    page.fill("#model", "no-such-model")
    opened.settle()
    check("a wrong name is the terminal's line", "no-such-model" in opened.text(".error"))
    left = [each for each in (".plans", "#command", "#asked") if page.is_visible(each)]
    left += ["title"] * ("llama" in opened.text("#title"))
    check("no other answer stays beside it", not left, left)

    page = opened.go(f"{address}#{SMALL}")
    page.click("#paste summary")
    changes("config.json", lambda: page.fill("#config", json.dumps(CONFIG)), opened.state)
    opened.go(page.url)
    kept = json.loads(page.input_value("#config") or "{}")
    check("the link holds a config.json", kept == CONFIG, kept)

    page = opened.go(f"{address}#{SMALL}")
    script = folder / "pretrain.sh"
    script.write_text(SCRIPT)
    changes("a launch file", lambda: page.set_input_files("#file", script), opened.state)
    check("its own plan is listed", "as launched" in opened.text(".plans"))
    opened.go(page.url)
    check("the link holds a launch file", "as launched" in opened.text(".plans"))
    changes("remove", lambda: page.click("#file-remove"), opened.state)
    drop(page, "#answer", "pretrain.sh", SCRIPT)
    opened.settle()
    check("a dropped file is read", "as launched" in opened.text(".plans"))
    drop(page, "#answer", "train.log", LOG)
    opened.settle()
    check("a dropped log is read", "train.log" in opened.text("#title"))
    check("its own plan is listed", "as launched" in opened.text(".plans"))

    explore(check, opened, address)
    opened.context.close()


def explore(check: Checks, opened: Opened, address: str) -> None:
    """Sliders, table, details, copies and the link."""
    opened.refused.clear()
    page = opened.go(f"{address}#{GPT}")
    asked = opened.state()
    for name in SLIDERS:
        page.locator(f".slider-{name}").press("Home")
        opened.settle()
        check(f"slider {name} searches again", opened.state() != asked)
        check(f"slider {name} is in the link", f"if.{name}=" in page.url, page.url)
        page.click(".reset")
        opened.settle()
        check(f"as asked after {name}", opened.state() == asked, opened.state())
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.locator(".slider-gpus").press(key)
    opened.settle()
    searches = sum(url.endswith("/api/search") for url in requests)
    check("five quick moves are one search", searches == 1, searches)
    moved = opened.state()
    opened.go(page.url)
    check("the link holds the sliders", opened.state() == moved, opened.state())
    page.click(".reset")
    opened.settle()

    for column in ("plan", "step", "speed", "mfu", "sent", "bytes", "fits"):
        page.click(f"[data-column={column}]")
        first = page.locator(".plans tbody tr").all_inner_texts()
        page.click(f"[data-column={column}]")
        check(f"column {column} sorts both ways",
              page.locator(".plans tbody tr").all_inner_texts() != first)  # fmt: skip
    page.click("[data-column=step]")
    page.click(".plans tbody tr:nth-child(3) [data-choose]")
    opened.settle()
    chosen = page.locator(".plans tbody tr:nth-child(3)").get_attribute("data-plan")
    check("a row shows its plan", opened.text(".detail .chosen") == chosen)
    page.click(".plans tbody tr:nth-child(1) [data-compare]")
    opened.settle()
    check("two plans are beside each other", "It takes" in opened.text(".compare"))
    state = opened.text(".compare")
    opened.go(page.url)
    check("the link holds both plans", opened.text(".compare") == state)
    for selector in ("[data-copy] >> nth=0", "[data-copy] >> nth=1", "#copy-command", "#link"):
        page.click(selector)
        page.wait_for_timeout(100)
        copied = page.evaluate("navigator.clipboard.readText()")
        check(f"{selector} copies", copied.startswith(("plan3d ", "# ", "http")), copied[:80])
        check(f"{selector} says so", page.inner_text(selector) == "Copied")
    for part in (".waterfall", ".memory", ".timeline"):
        page.hover(f"{part} .bar >> nth=0")
        check(f"{part} says what is pointed at", ": " in opened.text(".says"))
    opened.go(f"{address}#{GPT}")
    rows = page.locator(".memory .bar").count()
    check("memory has a bar for every rank", rows == 8, rows)
    check("nothing was refused", not opened.refused, opened.refused)


def keyboard(check: Checks, browser: Browser, address: str) -> None:
    """Tab reaches every control in the order of the page, each with a visible focus."""
    opened = Opened(browser)
    page = opened.go(f"{address}#{SMALL}")
    expected = page.evaluate(
        f"[...document.querySelectorAll({CONTROLS!r})].filter(each => !each.disabled"
        " && each.tabIndex >= 0 && each.checkVisibility()).length"
    )
    reached, unseen = [], []
    for _ in range(expected + 5):
        page.keyboard.press("Tab")
        at = page.evaluate(
            "(() => { const at = document.activeElement, style = getComputedStyle(at);"
            " at.tried = (at.tried ?? 0) + 1; return at === document.body ? null"
            " : [at.outerHTML.slice(0, 90), at.tried, style.outlineStyle, style.outlineWidth]; })()"
        )
        if at is None or at[1] > 1:
            break
        reached.append(at[0])
        if at[2] == "none" or at[3] == "0px":
            unseen.append(at[0])
    check(f"Tab reaches all {expected} controls", len(reached) >= expected, len(reached))
    check("each shows its focus", not unseen, unseen)

    best = opened.text(".best")
    page.locator(".slider-memory").focus()
    page.keyboard.press("Home")
    opened.settle()
    check("arrows move a slider", opened.text(".best") != best)
    page.locator(".reset").focus()
    page.keyboard.press("Enter")
    opened.settle()
    for kind in ("choose", "compare"):
        page.locator(f".plans tbody tr:nth-child(2) [data-{kind}]").focus()
        page.keyboard.press("Enter")
        opened.settle()
        held = page.evaluate(f"document.activeElement.dataset.{kind} !== undefined")
        check(f"Enter on {kind} keeps the focus", held)
        page.locator(".plans tbody tr:nth-child(1) [data-choose]").focus()
        page.keyboard.press("Enter")
        opened.settle()
    page.locator(".waterfall [tabindex='0']").focus()
    told = []
    for key in ("ArrowDown", "ArrowDown", "End", "Home"):
        page.keyboard.press(key)
        told.append(opened.text(".says"))
    check("arrows read the bars", len(set(told)) == 4, told)
    page.fill("#gpus", "8")
    page.keyboard.press("Enter")
    opened.settle()
    check("Enter asks", " on 8 " in opened.text("#title"), opened.text("#title"))
    live = page.locator(".best").get_attribute("aria-live")
    check("the answer is announced", live == "polite", live)
    opened.context.close()


def progress(check: Checks, browser: Browser, address: str) -> None:
    """A long search says how many plans are costed, until it is answered."""
    opened = Opened(browser)
    opened.page.goto(f"{address}#model=deepseek-v3&cluster=h800-sxm&gpus=2048&batch=15360")
    costed = opened.page.wait_for_selector("#costed:not(:empty)", timeout=60_000)
    check("a long search shows plans costed", costed, costed)
    opened.settle()
    check("an answer ends it", opened.text("#costed") == "", opened.text("#costed"))
    check("its console is silent", not opened.said, opened.said)


def colours(check: Checks, browser: Browser, address: str) -> None:
    """Kinds that stand beside each other differ for every colour blindness, or in their pattern."""
    for scheme in SCHEMES:
        opened = Opened(browser, scheme=scheme)
        page = opened.go(f"{address}#{GPT}")
        session = page.context.new_cdp_session(page)
        for deficiency in DEFICIENCIES:
            session.send("Emulation.setEmulatedVisionDeficiency", {"type": deficiency})
            near: list[tuple[float, str]] = []
            for legend in page.locator(".legend").all():
                names = legend.locator("> span").all_inner_texts()
                keys = [_colour(key.screenshot()) for key in legend.locator(".key").all()]
                for (a, one), (b, two) in itertools.pairwise(zip(keys, names, strict=True)):
                    near.append((float(np.linalg.norm(a - b)), f"{one}, {two}"))
            least, which = min(near)
            name = f"neighbours differ by {least:.0f} ({deficiency}, {scheme})"
            check(name, least >= LEAST_DIFFERENCE, which)
        opened.context.close()


def _colour(picture: bytes) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Mean CIE L*a*b* and its spread, which a pattern has, of a picture."""
    rgb = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"), float).reshape(-1, 3) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = linear @ to_xyz.T / (0.9505, 1.0, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)
    return np.concatenate([lab.mean(0), lab.std(0)])


def frozen(check: Checks, browser: Browser, axe: str, folder: Path) -> None:
    """The report is the page frozen: the same explorer, without a server."""
    file = folder / "report.html"
    words = ("search", "llama-7b", "h100-sxm", "16", "--global-batch", "64", "--quiet")
    subprocess.run(
        [sys.executable, "-m", "plan3d", *words, "--report", file],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    for width, scheme in itertools.product(WIDTHS, SCHEMES):
        opened = Opened(browser, width, scheme)
        page = opened.go(file.as_uri())
        where = f"the report, {width} px, {scheme}"
        wide = page.evaluate("document.documentElement.scrollWidth")
        check(f"nothing is wider than the window ({where})", wide <= width, wide)
        check(f"the console is silent ({where})", not opened.said, opened.said)
        axe_finds_nothing(check, page, axe, where)
        opened.context.close()


def notebook(check: Checks, browser: Browser, address: str) -> None:
    """The widget's module, with a kernel behind it that is this process."""
    from plan3d import Cluster, Model, Task, explore

    task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=16),
                sequence=2048, global_batch=64)  # fmt: skip
    view = explore(task)
    sent: list[dict[str, Any]] = []
    view.widget.send = sent.append
    opened = Opened(browser)
    page = opened.page

    def kernel(message: dict[str, Any]) -> dict[str, Any]:
        view.widget._handle_custom_msg(message, [])
        return json.loads(json.dumps(sent.pop()))

    page.expose_function("kernel", kernel)
    page.set_content(f"<style>{view.widget._css}</style><div id='cell'></div>")
    page.evaluate(HARNESS, view.widget._esm)
    page.wait_for_selector("#cell .plan3d[aria-busy=false]", timeout=60_000)
    best = page.inner_text(".best")
    check("the widget answers", best.startswith("Best: "), best)
    page.locator(".slider-gpus").press("Home")
    page.wait_for_timeout(1500)
    page.wait_for_selector("#cell .plan3d[aria-busy=false]", timeout=60_000)
    check("its sliders search again", page.inner_text(".best") != best)
    check("it draws the plan", page.locator("#cell .memory .bar").count() > 0)
    check("the console is silent (the widget)", not opened.said, opened.said)
    opened.context.close()


def pictures(browser: Browser, address: str, folder: Path) -> None:
    """The pictures of the docs, in 128 colours."""
    shots = (
        ("serve", 1280, "light", 1500),
        ("serve_dark", 1280, "dark", 1500),
        ("serve_narrow", 390, "light", 1900),
    )
    for name, width, scheme, height in shots:
        opened = Opened(browser, width, scheme)
        page = opened.go(f"{address}#{GPT}")
        if width > 1000:
            page.click(".plans tbody tr:nth-child(3) [data-compare]")
            opened.settle()
        page.mouse.move(0, 0)
        page.set_viewport_size({"width": width, "height": height})
        if width < 1000:
            page.locator("#answer").scroll_into_view_if_needed()
            page.evaluate("document.querySelector('#answer').scrollIntoView()")
        drawn = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        place = folder / f"{name}.png"
        drawn.quantize(128, dither=Image.Dither.NONE).save(place, optimize=True)
        print(f"{place}: {place.stat().st_size:,} bytes")
        assert place.stat().st_size < LARGEST
        opened.context.close()


def drop(page: Page, selector: str, name: str, text: str) -> None:
    """A file that is dropped on an element."""
    held = page.evaluate_handle(
        "([name, text]) => { const held = new DataTransfer();"
        " held.items.add(new File([text], name)); return held; }",
        [name, text],
    )
    page.dispatch_event(selector, "drop", {"dataTransfer": held})


BROKEN_WORDS = """[...document.querySelectorAll(".plans td, .plans th, .beside td, .figures span")]
  .flatMap((cell) => {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = new Range();
    const out = [];
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      for (const word of text.data.matchAll(/\\S+/g)) {
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (cell.checkVisibility() && range.getClientRects().length > 1) out.push(word[0]);
      }
    }
    return out;
  })"""
"""Words of tables and tiles that go on in another line."""
SLIDERS = ("gpus", "global_batch", "inter_node_bandwidth", "intra_node_bandwidth", "memory")
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048,
    "num_hidden_layers": 16, "num_attention_heads": 16, "intermediate_size": 5632,
    "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
SCRIPT = """torchrun --nproc-per-node 8 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 \\
  --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --normalization RMSNorm \\
  --swiglu --untie-embeddings-and-output-weights --disable-bias-linear \\
  --position-embedding-type rope --bf16 --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 \\
  --use-distributed-optimizer
"""
ARGUMENTS = {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 11008, "num_attention_heads": 32,
    "seq_length": 2048, "max_position_embeddings": 2048, "padded_vocab_size": 32000,
    "normalization": "RMSNorm", "swiglu": True, "untie_embeddings_and_output_weights": True,
    "add_bias_linear": False, "position_embedding_type": "rope", "bf16": True, "world_size": 16,
    "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2, "micro_batch_size": 1,
    "global_batch_size": 64, "use_distributed_optimizer": True,
}  # fmt: skip
LOG = "\n".join(
    [
        f"{'-' * 24} arguments {'-' * 24}",
        *(f"  {name} {'.' * (48 - len(name))} {value}" for name, value in ARGUMENTS.items()),
        f"{'-' * 20} end of arguments {'-' * 21}",
        *(
            f" iteration {i:8}/ 1000 | consumed samples: {64 * i:12} | elapsed time per iteration "
            f"(ms): {1000 + i}.0 | global batch size: 64 | lm loss: 8.1E+00 |"
            for i in range(1, 21)
        ),
    ]
)
HARNESS = """async (module) => {
  const url = URL.createObjectURL(new Blob([module], {type: "text/javascript"}));
  const { default: widget } = await import(url);
  const heard = [];
  widget.render({ el: document.querySelector("#cell"), model: {
    on: (name, hear) => heard.push(hear),
    off: () => {},
    send: async (message) => {
      const reply = await window.kernel(message);
      heard.forEach((hear) => hear(reply));
    },
  } });
}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axe", type=Path, required=True, help="axe.min.js of axe-core")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--pictures", type=Path, help="write the pictures of the docs here")
    parser.add_argument("--only", help="one part: looks, controls, keyboard, ...")
    options = parser.parse_args()
    axe, check = options.axe.read_text(encoding="utf-8"), Checks()
    with (
        server() as address,
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as name,
    ):
        browser = playwright.chromium.launch(executable_path=options.browser, args=list(SWITCHES))
        parts: dict[str, Callable[[], None]] = {
            "looks": lambda: looks(check, browser, address, axe),
            "controls": lambda: controls(check, browser, address, Path(name)),
            "keyboard": lambda: keyboard(check, browser, address),
            "progress": lambda: progress(check, browser, address),
            "colours": lambda: colours(check, browser, address),
            "frozen": lambda: frozen(check, browser, axe, Path(name)),
            "notebook": lambda: notebook(check, browser, address),
        }
        for part in [options.only] if options.only else parts:
            if part in parts:
                parts[part]()
        if options.pictures is not None:
            pictures(browser, address, options.pictures)
        browser.close()
    print(f"{len(check.failed)} failed" if check.failed else "all hold")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
