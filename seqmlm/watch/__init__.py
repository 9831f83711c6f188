"""Watching files that others still write to: tail -> score -> rows -> incidents, and whoever is to be told.

An island: no other part imports it, and it stands on what the others offer to all. `follower`,
`generations` and `journal` read; `scoring` puts all together, `judging` and `versions` are the models that
judge, `rows` what is written of it, `outbox` how it survives whatever ends the process, `store` the database
that it survives in. `grouping` makes incidents of alarms, `webhooks` and `metrics` tell of them; `incidents`,
`streams`, `timeline` and `calibration` are what a person does with the rows afterwards.
"""
