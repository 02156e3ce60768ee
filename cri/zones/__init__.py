"""protectd as xenpod-cri sees it: its calls and its stream of changes."""
