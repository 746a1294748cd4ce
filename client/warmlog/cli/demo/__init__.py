"""`warmlog demo`: the main job on real input, from produce to Spark, with every result checked.

`story` runs the seven steps in order; their modules are `flights` (the input), `broker` (the process), `sending`,
`checking` and `spark_query`. `requirements` checks what must be installed, `screen` prints.
"""
