"""Our own tables, for what MLflow cannot answer: data sets, tokenizers, models, and what came from what.

MLflow owns runs and metrics; rows here carry its run ids and repeat none of its numbers.
"""
