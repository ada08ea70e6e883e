"""Models that draft for another one; one module each, `Config`, `ahead` and `FORM`.

FORM: what a draft is made of, by `graphml.runtime.sessions.draft_file`. UNREAD, if it has that: tensors that
files have and it does not read. correct, CORRECTS: a second graph, of files with one of those tensors.
"""
