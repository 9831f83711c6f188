"""Watching files that others still write to: tail -> score -> rows -> incidents, and whoever is to be told.

No other part imports it. `config` and `request` have its settings; `follower` and `generations` read, and
`silence` notices that a log has stopped; `grouping` makes incidents of alarms; `outbox` commits what a turn
did to the database of `store` and `tables`, so that it survives whatever ends the process. `scoring` runs
all of it, `webhooks` and `metrics` report it; `incidents` and `timeline` show it to a person afterwards.
"""
