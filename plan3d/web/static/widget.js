// The explorer in a notebook: its questions are messages to the kernel, one at a time.

function render({ model, el }) {
  const root = made("div", { class: "plan3d" });
  el.append(root);
  const waiting = new Map();
  let count = 0, last = Promise.resolve();
  const heard = ({ id, record, error }) => {
    const { done, refused } = waiting.get(id) ?? {};
    waiting.delete(id);
    if (error) refused?.(new Error(error));
    else done?.(record);
  };
  const send = (what, question) => new Promise((done, refused) => {
    count += 1;
    waiting.set(count, { done, refused });
    model.send({ id: count, what, ...question });
  });
  const ask = (what, whatIf, more, signal) => {
    const mine = last.then(() => {
      signal.throwIfAborted();
      return send(what, { what_if: whatIf, ...more });
    });
    last = mine.catch(() => {});
    return mine;
  };
  model.on("msg:custom", heard);
  explorer(root, { ask, sliders: slidersOf, wait: 200 }).start();
  return () => model.off("msg:custom", heard);
}

export default { render };
