"""What xenpod-cri knows: records of sandboxes and containers, their store, and their events."""
