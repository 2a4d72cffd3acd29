"""Files that a user names, and files from anywhere: asked for before long work, looked at before they are read."""
