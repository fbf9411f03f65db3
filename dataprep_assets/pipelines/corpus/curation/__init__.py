"""Tags, rules, and the table of documents."""
