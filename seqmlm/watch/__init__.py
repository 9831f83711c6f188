"""Watching files that others still write to: tail -> score -> rows -> incidents, and whoever is to be told.

An island: no other part imports it, and it stands on what the others offer to all. `follower`,
`generations` and `journal` read; `judging` and `versions` are the models that judge; `grouping` makes
incidents of alarms; `outbox` is how all of it survives whatever ends the process, `store` the database that
it survives in. `scoring` puts it together, `webhooks` and `metrics` tell of it; `incidents`, `timeline` and
`calibration` are what a person does afterwards.
"""
