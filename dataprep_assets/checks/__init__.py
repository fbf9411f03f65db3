"""One module an artifact, the same names as in `assets/`: asset checks around the pure functions of `proofs/`."""
