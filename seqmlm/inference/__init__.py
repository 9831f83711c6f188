"""The floor that tasks stand on: a model ready to be asked, and what judges records. In reading order:

model_folder    a model folder, our card in it, and the objects that the card names
calibrations    what a folder holds of normal data
session         reference -> a model ready to be asked
batches         records -> batches of encodings, and how much is done at a time
scorer          batches -> scores, window by window
detector        scores -> rows with p-values and alarms
"""
