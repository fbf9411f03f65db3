# How `dataprep` comes to a node. run.sbatch reads this file in the folder in which sbatch is called: the project's.
# Take out the # of one of the three; the second line of each is for `run_on: slurm`, whose tasks start Python themselves.

# --- a venv on the shared disk, made once on a login node: python3 -m venv .venv && .venv/bin/pip install dataprep-assets
#DATAPREP=$PWD/.venv/bin/dataprep
#export DATAPREP_SLURM_PYTHON=$PWD/.venv/bin/python

# --- modules: Python from the cluster, the packages from a venv over it
#module purge && module load python/3.11 && . "$PWD/.venv/bin/activate"
#export DATAPREP_SLURM_PYTHON=$PWD/.venv/bin/python

# --- a container, with the packages; the project lies on the shared disk: apptainer build dataprep.sif docker-daemon://IMAGE:1
#DATAPREP="apptainer exec --bind $PWD dataprep.sif dataprep"
#export DATAPREP_SLURM_PYTHON="apptainer exec --bind $PWD $PWD/dataprep.sif python"

# What is made must lie where every node sees it. A bucket instead: DATAPREP_STORAGE, DATAPREP_BUCKET and its keys
#export DATAPREP_ROOT=$PWD/.dataprep/artifacts
# copies of what is read from a bucket: a disk of the node's own
#export DATAPREP_CACHE=${TMPDIR:-/tmp}/dataprep-cache
