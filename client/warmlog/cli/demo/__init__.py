"""`warmlog demo`: the main job on real input, from produce to Spark, with every result checked.

`story` tells the seven steps in order; each step has its module: `flights` (the input), `broker` (the process),
`sending`, `checking`, `seeking`, `spark_query`. `requirements` finds what must be installed, `screen` shows it all.
"""
