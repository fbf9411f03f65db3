# Make `dataprep` available on a node. run.sbatch reads this file in the folder in which you call sbatch: the project's.
# Uncomment one of the three variants.

# --- a venv on the shared disk, created once on a login node: python3 -m venv .venv && .venv/bin/pip install dataprep-assets
#DATAPREP=$PWD/.venv/bin/dataprep

# --- modules: Python from the cluster, the packages from a venv based on it
#module purge && module load python/3.11 && . "$PWD/.venv/bin/activate"

# --- a container with the packages; the project is on the shared disk: apptainer build dataprep.sif docker-daemon://IMAGE:1
#DATAPREP="apptainer exec --bind $PWD dataprep.sif dataprep"

# Artifacts must be on a disk that every node sees, or in a bucket: DATAPREP_STORAGE, DATAPREP_BUCKET and its keys
#export DATAPREP_ROOT=$PWD/.dataprep/artifacts
# copies of files in a bucket: on a local disk of the node
#export DATAPREP_CACHE=${TMPDIR:-/tmp}/dataprep-cache
