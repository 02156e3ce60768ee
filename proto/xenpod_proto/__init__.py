"""Generated stubs of the contracts.  Never edited by hand: ``make proto`` writes them."""
