"""Models, runs, data and the workspace: commands that list, inspect, export and check what is there."""
