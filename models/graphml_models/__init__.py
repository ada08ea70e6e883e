"""One file per architecture, named as GGUF names it (`-` becomes `_`); files that begin with `_` are shared."""
