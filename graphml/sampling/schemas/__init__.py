"""JSON schemas: checked, made closed, and rewritten to what the guide of structured text takes."""
