"""What a declaration in YAML says, and what is wrong with one."""
