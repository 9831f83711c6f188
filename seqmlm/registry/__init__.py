"""Tables of data sets, tokenizers and models, and their lineage, which MLflow does not store.

MLflow stores runs and metrics. Rows here contain MLflow's run ids, but none of its numbers.
"""
