"""The local page and its JSON interface: `plan3d serve`, the extra plan3d[web]."""
