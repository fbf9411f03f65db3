"""Where the site is, and the policy with which its pages are served; imported by servers, which render no page."""

from pathlib import Path

SITE, HISTORY = Path(".dataprep/site"), Path(".dataprep/site_history")
"""Folders of the site, and of the records that were read from Dagster, in the project."""
INDEX, STATIC_FOLDER, HISTORY_FOLDER = "index.html", "static/", "history/"
"""First page, folder of scripts and styles, and, in a bucket, folder of the records that were read from Dagster."""
BUCKET_FOLDER = ".site/"
"""Prefix of the copies in a bucket; artifacts are never below a name that begins with a dot."""
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
"""Suffix of the site's files → their type."""
POLICY = "; ".join(
    [
        *("default-src 'none'", "style-src 'self'", "script-src 'self'", "img-src 'self' data:", "base-uri 'none'"),
        *("form-action 'none'", "frame-ancestors 'none'"),
    ]
)
"""Content-Security-Policy of the pages, which have no inline script, style or event handler."""
