"""The usual ClientApp; it also notes, beside its ledger, when its process and its part of it began and ended."""

import json
import resource
import time
from pathlib import Path

import psutil
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pipecycle.deploy import client_app

ours = client_app()
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    began = time.time()
    reply: Message = ours(message, context)
    noted = {
        "message": message.metadata.message_id,
        "process": psutil.Process().create_time(),
        "began": began,
        "ended": time.time(),
        "cpu": time.process_time(),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    with Path(str(context.node_config["ledger"])).with_name("times.jsonl").open("a") as file:
        file.write(json.dumps(noted) + "\n")
    return reply
