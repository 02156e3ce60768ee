"""The state of protectd: the store, the ledger of memory, the hub of changes, the registries."""
