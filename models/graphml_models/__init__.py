"""One file per architecture, named as GGUF names it (`-` becomes `_`); `_` begins shared ones."""
