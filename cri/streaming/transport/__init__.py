"""Connections as streams: SPDY and WebSocket."""
