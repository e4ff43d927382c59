-- Who may write for a partition, and where it goes on.

-- name: take_partitions
-- $1 topic, $2 topic id, $3 owner, $4 partitions. The epoch rises, so whatever an earlier owner still has in flight is fenced. Another
-- topic id is another log: its offsets say nothing about this one.
INSERT INTO partition_owner AS o (topic, partition, epoch, topic_id, owner)
SELECT $1, partition, 1, $2, $3 FROM unnest($4::int[]) AS given (partition) ORDER BY partition
ON CONFLICT (topic, partition) DO UPDATE SET epoch = o.epoch + 1, owner = excluded.owner, topic_id = excluded.topic_id, taken_at = now(),
  next_offset = CASE WHEN o.topic_id = excluded.topic_id THEN o.next_offset END
RETURNING partition, epoch, next_offset;

-- name: read_partitions
SELECT partition, epoch, next_offset FROM partition_owner WHERE topic = $1 AND partition = ANY($2::int[]);
