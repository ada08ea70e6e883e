"""What the operating system gives: memory pages, folders and who may write there, files replaced whole."""
