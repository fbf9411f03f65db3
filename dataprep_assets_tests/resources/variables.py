"""Environment variables of a bucket on R2, with credentials that must never be shown."""

KEY_ID, SECRET = "CANARYKEYID0123456789", "canary-secret-value-0123456789"
R2 = {
    "DATAPREP_STORAGE": "r2",
    "R2_DATASET_ACCOUNT_ID": "0123456789abcdef",
    "R2_DATASET_BUCKET_NAME": "corpora",
    "R2_DATASET_WRITE_ACCESS_KEY_ID": KEY_ID,
    "R2_DATASET_WRITE_SECRET_ACCESS_KEY": SECRET,
    "DATASET_BINS_PATH": "remote/tokenized/",
}
