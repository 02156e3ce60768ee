"""Takes all rights from processes that read hostile bytes: workers, and tar2sqfs."""
