"""Commands that list, inspect, export and check models, runs, data and the workspace."""
