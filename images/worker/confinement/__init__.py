"""Takes all rights from processes that read bytes of strangers: workers, and tar2sqfs."""
