"""Topics copied record by record: `mirror` between clusters, `repartition` into more partitions.

Both are one engine (`copier`) with another answer to "which partition": `routes` has the answers,
`checkpoints` what is remembered and how offsets translate, `store` where it is remembered, `topics`
how a topic is made like another, `sealing` the end of the old topic in a hand-over, `groups` the
positions of consumer groups. May import `client` and what is below it; knows nothing of Spark.
"""
