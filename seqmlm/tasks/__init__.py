"""The commands that use a model. Each turns a config into a result, in one tracked run."""
