"""What `graphml chat` is made of: reading a person's input, the commands, answering, files of messages."""
