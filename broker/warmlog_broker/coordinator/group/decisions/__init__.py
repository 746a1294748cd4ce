"""Consumer groups as a pure state machine: members, target assignments, hand-over of partitions, offsets."""
