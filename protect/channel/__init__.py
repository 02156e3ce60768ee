"""The zone channel's host side: frames, streams, and their link to the agent (docs/channel.md)."""
