"""Worker processes: hostile bytes consume host resources only until the reading process ends."""
