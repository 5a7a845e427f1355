"""Statistics of a user's own run while it trains, without a replay: docs/monitor.md."""
