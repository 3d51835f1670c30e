"""`rollart ui`: a read-only web application over the tables of runs.

`guard` admits requests, `catalog` finds runs, `live_run` reads them at one moment, `api` answers
with rows of views as JSON, `app` puts them together with the files of `static`, `serving` listens.
A page is a module of `static/pages`; how to add one is said at the beginning of `static/main.js`.
"""
