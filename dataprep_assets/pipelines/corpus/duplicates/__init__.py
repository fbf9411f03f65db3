"""Near-duplicates within a corpus and between corpora."""
