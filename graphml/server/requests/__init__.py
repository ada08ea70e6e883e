"""What requests of all protocols say: typed fields, prompts, settings of sampling."""
