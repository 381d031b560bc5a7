"""MLflow with a directory as its store: parameters, metrics that are appended to, artifacts."""

import os

os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the store of this test is a directory

import mlflow
from mlflow.tracking import MlflowClient

from saving import SEED, digest, main, names, same

STEPS = 30


def save(place):
    mlflow.set_tracking_uri("file://" + place.path("mlruns"))
    mlflow.set_experiment("writes")
    artifact = place.beside("weights.bin")
    with open(artifact, "wb") as f:
        f.write(f"{SEED} ".encode() * 300_000)
    with mlflow.start_run(run_name="one") as run:
        mlflow.log_params({"lr": 0.1, "layers": 4})
        for i in range(STEPS):
            mlflow.log_metric("loss", 1.0 / (i + 1), step=i)
        mlflow.log_artifact(artifact, "model")
        mlflow.log_dict({"a": [1, 2, 3]}, "config.json")
        mlflow.set_tag("note", "changed later")
        mlflow.set_tag("note", "as it stays")
    with open(place.path("run-id"), "w") as f:
        f.write(run.info.run_id)
    with open(artifact, "rb") as f:
        return {"artifact": digest(f.read()), "loss": str([(i, 1.0 / (i + 1)) for i in range(STEPS)])}


def load(place):
    names(place.root, "mlruns", "run-id")
    with open(place.path("run-id")) as f:
        run_id = f.read()
    client = MlflowClient("file://" + place.path("mlruns"))
    run = client.get_run(run_id)
    same("status, parameters and tag", [run.info.status, run.data.params, run.data.tags["note"]],
         ["FINISHED", {"lr": "0.1", "layers": "4"}, "as it stays"])
    path = os.path.join(run.info.artifact_uri.removeprefix("file://"), "model", "weights.bin")
    path = os.path.join(place.path("mlruns"), path.split("/mlruns/", 1)[1])  # the mount may be elsewhere now
    with open(path, "rb") as f:
        artifact = digest(f.read())
    return {"artifact": artifact, "loss": str(sorted((m.step, m.value) for m in client.get_metric_history(run_id, "loss")))}


if __name__ == "__main__":
    main(save, load)
