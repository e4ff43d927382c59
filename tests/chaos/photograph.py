"""A picture of a system that stands still: what every thread does, and how far each group has come."""

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.chaos.system import PARTITIONS, PREFIX, QUEUE, System

PY_SPY = Path(sys.executable).with_name("py-spy")
SECONDS = 10.0


def photograph(system: System) -> None:
    """Write `stuck.txt` into the folder. Never raises: it is taken when something is wrong already."""
    parts = []
    for name, pid in system.supervisor.pids().items():
        pids = [pid]
        with contextlib.suppress(psutil.Error):
            pids += [child.pid for child in psutil.Process(pid).children(recursive=True)]
        parts += [f"== {name} {one}\n{_stacks(one)}" for one in pids]
    parts.append(f"== groups\n{_groups(system.kafka.bootstrap)}")
    (system.folder / "stuck.txt").write_text("\n".join(parts))


def _stacks(pid: int) -> str:
    try:
        done = subprocess.run(
            [PY_SPY, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return repr(error)
    return done.stdout + done.stderr


def _groups(kafka: str) -> str:
    """Of the workers' group: its members with their partitions, and committed against end."""
    admin = AdminClient({"bootstrap.servers": kafka})
    group, topic = f"{PREFIX}.workers", f"{PREFIX}.commands.{QUEUE}"
    lines = []
    try:
        described = admin.describe_consumer_groups([group], request_timeout=SECONDS)[group].result(SECONDS)
        lines += [f"{member.member_id} {member.assignment.topic_partitions}" for member in described.members]
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(PARTITIONS)])
        answer = admin.list_consumer_group_offsets([asked], request_timeout=SECONDS)[group].result(SECONDS)
        consumer = Consumer({"bootstrap.servers": kafka, "group.id": "chaos-picture"})
        for place in answer.topic_partitions or []:
            low, high = consumer.get_watermark_offsets(place, SECONDS)
            lines.append(f"{place.topic}[{place.partition}] committed {place.offset}, log {low}..{high}")
        consumer.close()
    except (KafkaException, TimeoutError) as error:
        lines.append(repr(error))
    return "\n".join(lines)
