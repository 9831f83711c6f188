"""`seqmlm watch`: follow growing files, score their lines, group alarms into incidents, and notify webhooks.

Only the command line imports this package. Its modules are:

    config.py, request.py         the settings, and whether an earlier stream can be continued
    follower.py, generations.py   read files that grow and are rotated
    silence.py                    raises an alarm if a log has stopped
    grouping.py                   groups alarms into incidents
    outbox.py                     commits each turn to the database, so that it survives a crash
    store.py, tables.py           the database
    scoring.py                    runs all of this
    webhooks.py, metrics.py       report incidents and counters while it runs
    incidents.py, timeline.py     show incidents and reports afterwards
"""
