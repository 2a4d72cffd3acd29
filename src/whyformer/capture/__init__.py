"""Interception: attention seen, recorded or changed inside an unmodified model. README.md has the details."""
