# How `dataprep` comes to a node. run.sbatch reads this file in the folder in which you call sbatch: the project's.
# Remove the # of one of the three.

# --- a venv on the shared disk, made once on a login node: python3 -m venv .venv && .venv/bin/pip install dataprep-assets
#DATAPREP=$PWD/.venv/bin/dataprep

# --- modules: Python from the cluster, the packages from a venv over it
#module purge && module load python/3.11 && . "$PWD/.venv/bin/activate"

# --- a container, with the packages; the project lies on the shared disk: apptainer build dataprep.sif docker-daemon://IMAGE:1
#DATAPREP="apptainer exec --bind $PWD dataprep.sif dataprep"

# What is made must lie where every node sees it. A bucket instead: DATAPREP_STORAGE, DATAPREP_BUCKET and its keys
#export DATAPREP_ROOT=$PWD/.dataprep/artifacts
# copies of what is read from a bucket: a disk of the node's own
#export DATAPREP_CACHE=${TMPDIR:-/tmp}/dataprep-cache
