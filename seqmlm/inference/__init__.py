"""The floor that tasks stand on: a model ready to be asked, and a loop over records. In reading order:

model_folder    a model folder, our card in it, and the objects that the card names
calibrations    what a folder holds of normal data
session         reference -> a model ready to be asked
batches         records -> batches of encodings, read ahead
scorer          batches -> scores, window by window
detector        scores -> rows with p-values and alarms
runner          input -> batches -> answers -> rows -> output, and how a task is written
"""
