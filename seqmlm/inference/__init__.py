"""The layer below the tasks: a loaded model, and the code that scores records with it.

In reading order:

    model_folder     the folder of a model, its card, and the objects that the card names
    calibrations     the files of a folder about normal data
    session          from a model reference to a loaded model
    record_batches   from records to batches of encodings, and the size of the batches
    scorer           from batches to scores, window by window
    detector         from scores to rows with p-values and alarms
"""
