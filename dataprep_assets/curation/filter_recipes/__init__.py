"""Published recipes of filters: one YAML file each, with taggers, rules and the source of every threshold."""
