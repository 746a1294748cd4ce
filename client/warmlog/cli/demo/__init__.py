"""`warmlog demo`: the main job on real input, from produce to Spark, with every result checked.

`story` runs the eight steps in order; their modules are `flights` (the input), `broker` (the process), `sending`,
`checking`, `spark_query` and `spark_pipeline` (both in a `spark_process`). `requirements` checks what is
installed, `screen` prints.
"""
